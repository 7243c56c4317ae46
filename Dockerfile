# The environment of the paper's measurements: docs/container.md says how to run it, and how to build it when this base
# has gone from the registry.
ARG BASE_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6
FROM ${BASE_IMAGE}

# Triton and torch.compile need a C++ compiler and Python's headers when they run, the paper LaTeX.
# No versions: Ubuntu's archive drops old ones, so that a pinned package cannot be installed for long.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
    ca-certificates g++ git latexmk make python3-dev python3-venv texlive-fonts-recommended texlive-latex-recommended \
 && rm -rf /var/lib/apt/lists/*

# The last one: container/driver.py checks the driver itself, and says how to mend what it finds.
ENV PATH=/opt/venv/bin:${PATH} \
    CUDA_HOME=/usr/local/cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_DISABLE_REQUIRE=1

COPY requirements/image.build.txt requirements/image.txt /opt/requirements/
# One package of the lock is a source archive: setuptools comes first, so that pip fetches none that is not locked.
RUN python3.12 -m venv /opt/venv \
 && pip install --no-cache-dir --no-deps --require-hashes --requirement /opt/requirements/image.build.txt \
 && pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
    --requirement /opt/requirements/image.txt \
 && pip check \
 && python -c "import torch; assert torch.version.cuda, f'torch {torch.__version__} is a CPU build'"

# accelerated-scan compiles its CUDA kernel when it is imported. Here that happens once for all users and GPUs (PTX for
# those newer than 9.0); at run time, PyTorch finds nothing to do. It takes a lock file in this folder all the same.
ENV TORCH_CUDA_ARCH_LIST="8.0;8.6;9.0+PTX" \
    TORCH_EXTENSIONS_DIR=/opt/torch_extensions
RUN python -c "import accelerated_scan.warp" \
 && chmod -R a+rwX "$TORCH_EXTENSIONS_DIR"

WORKDIR /opt/linear-scan
COPY . .
# What is written goes to /outputs, whoever runs the container; without a volume there it ends with the container. The
# tests' linter of imports keeps a cache beside the sources.
RUN install --directory --mode 1777 /outputs .import_linter_cache \
 && ln -s /outputs outputs \
 && ln -s /outputs/paper paper/build \
 && chmod -R a+rX .

# The commit of the sources, for the records: --build-arg SCAN_COMMIT="$(git rev-parse HEAD)"
ARG SCAN_COMMIT
ENV SCAN_COMMIT=${SCAN_COMMIT} \
    SCAN_OUTPUTS=/outputs \
    PYTHONPATH=/opt/linear-scan \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

ENTRYPOINT ["python", "-m", "container"]
CMD ["reproduce"]
