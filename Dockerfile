# The node daemon. Build it at the root of the project, for one architecture or for both:
#   docker build --tag registry.example.com/gpushare:0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --tag registry.example.com/gpushare:0.1.0 --push .
# BASE is the image that both stages start from. A tag can change: --build-arg BASE=python:3.13-slim@sha256:… pins it
# (docs/install.md shows how to find the digest).
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml README.md ./
COPY image image
COPY gpushare_plugin gpushare_plugin
RUN image/install.sh /opt/gpushare

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="gpushare" \
      org.opencontainers.image.description="Shares the NVIDIA GPUs of a Kubernetes node among pods" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/gpushare /opt/gpushare
ENV PATH=/opt/gpushare/bin:${PATH}
# Remove pip: a daemon that runs as root needs no way to install software. Then check that gpushare starts. The last command imports
# every module, which leaves byte code of the standard library. The base image lacks it, and a read-only root file system could not
# store it: each start would compile a hundred modules anew, which takes longer than all else.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python*/site-packages/pip* /usr/local/lib/python*/ensurepip \
 && gpushare version \
 && python -c 'import gpushare_plugin as all, importlib, pkgutil; [importlib.import_module(each.name) for each in pkgutil.walk_packages(all.__path__, "gpushare_plugin.")]'
# No USER: only root can access the kubelet's socket directories.
ENTRYPOINT ["gpushare"]
CMD ["run"]
