"""What is done with `nvidia-cuda-mps-control`: found, started, asked, limited, ended."""
