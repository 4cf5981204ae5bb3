#!/bin/sh
# Install gpushare with what it needs, and nothing else, as a virtual environment at TARGET.
# Every package is a wheel with a hash in requirements.txt, so no compiler is needed, and no other wheel is accepted.
set -eu

target=${1:?usage: install.sh TARGET}
project=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

"$python" -m venv --without-pip "$target"
"$python" -m pip --python "$target/bin/python" install --only-binary=:all: --no-compile --require-hashes \
    --requirement "$project/image/requirements.txt"
# The build tools are installed already. With build isolation pip would download them without hashes.
"$python" -m pip --python "$target/bin/python" install --no-deps --no-index --no-build-isolation --no-compile "$project"

# Remove what gpushare does not use: build tools, source code and Markdown support of rich, the parser of C that cffi builds with, time zones (all times are in UTC), the tests and compilers of numpy, files for
# compiling and type checking, and 120 MB of classes for every kind of object in the Kubernetes client, imported only when named.
"$python" -m pip --python "$target/bin/python" uninstall --yes markdown-it-py mdurl pycparser pygments tzdata \
    hatchling packaging pathspec pluggy tomlkit trove-classifiers
rm -rf "$target"/lib/*/site-packages/numpy/distutils "$target"/lib/*/site-packages/numpy/f2py
find "$target/lib" -depth -type d -path '*/numpy/*' -name tests -exec rm -rf {} +
find "$target/lib" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.px[di]' -o -name '*.h' \) -delete
find "$target"/lib/*/site-packages/kubernetes -path '*/client/*' \( -path '*/api/*' -o -path '*/models/*' \) \
    -type f ! -name '__init__*' -delete
find "$target/bin" -mindepth 1 ! -name 'python*' ! -name gpushare ! -name 'kubectl-*' -delete

# Make the byte code of what stays: the file system of a container is read-only.
"$target/bin/python" -m compileall -q "$target/lib"
