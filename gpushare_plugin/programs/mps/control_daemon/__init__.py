"""The MPS control daemon, `nvidia-cuda-mps-control`: found, started, asked, limited, ended."""
