#!/bin/sh
# Install gpushare with what it needs, and nothing else, as a virtual environment at TARGET.
# Every package is a wheel with a hash in requirements.txt, so no compiler is needed, and nobody can pass off another one.
set -eu

target=${1:?usage: install.sh TARGET}
project=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

"$python" -m venv --without-pip "$target"
"$python" -m pip --python "$target/bin/python" install --only-binary=:all: --compile --require-hashes \
    --requirement "$project/image/requirements.txt"
# What builds this project is there already: with a place of its own to build in, pip would fetch it without hashes.
"$python" -m pip --python "$target/bin/python" install --no-deps --no-index --no-build-isolation --compile "$project"

# What nothing here uses is left out: the build is done, rich shows no source code and no Markdown, all times are in UTC, nobody compiles or
# checks types, and the Kubernetes client has 120 MB of classes for every kind of object, imported only when named.
"$python" -m pip --python "$target/bin/python" uninstall --yes markdown-it-py mdurl pygments tzdata \
    hatchling packaging pathspec pluggy tomlkit trove-classifiers
find "$target/lib" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.px[di]' -o -name '*.h' \) -delete
find "$target"/lib/*/site-packages/kubernetes -path '*/client/*' \( -path '*/api/*' -o -path '*/models/*' \) \
    -type f ! -name '__init__*' -delete
find "$target/bin" -mindepth 1 ! -name 'python*' ! -name gpushare -delete
