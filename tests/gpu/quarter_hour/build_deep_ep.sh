#!/usr/bin/env bash
# Build DeepEP's wheel for the torch in ENV and for sm_90, on a machine without a GPU.
#
#     tests/gpu/quarter_hour/build_deep_ep.sh ENV FOLDER
#
# ENV is the virtual environment that README.md makes; the wheel goes to FOLDER/kernels. It needs git, a C++ compiler and
# the headers of libibverbs (Debian: libibverbs-dev). The only published builds, PyPI's sgl-deep-ep, are for torch 2.13
# and 2.14. Of CUDA's driver, NCCL and NVSHMEM nothing goes into the wheel: it finds those that torch has loaded.
set -euo pipefail
python=$(realpath -s "$1")/bin/python kernels=$(realpath -m "$2")/kernels
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvidia=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia

git clone -q https://github.com/deepseek-ai/DeepEP "$work/source"
git -C "$work/source" checkout -q dd758caf
git -C "$work/source" submodule -q update --init --recursive
"$python" -m pip download -q --no-deps -d "$work" nvidia-nccl-cu13==2.30.7
"$python" -m zipfile -e "$work"/nvidia_nccl_*.whl "$work/nccl"

# The layout of an installed toolkit, with the names that the linker asks for.
export CUDA_HOME=$work/cuda
mkdir -p "$CUDA_HOME/lib64"
ln -s "$nvidia"/cu13/{bin,include,nvvm} "$CUDA_HOME"
ln -s "$nvidia"/cu13/lib/lib*.{so.*,a} "$CUDA_HOME/lib64"
ln -s libcudart.so.13 "$CUDA_HOME/lib64/libcudart.so"
cc -shared -x c /dev/null -Wl,-soname,libcuda.so.1 -o "$CUDA_HOME/lib64/libcuda.so"

export PATH=$(dirname "$python"):$CUDA_HOME/bin:$PATH TORCH_CUDA_ARCH_LIST=9.0
export NCCL_DIR=$work/nccl/nvidia/nccl NVSHMEM_DIR=$nvidia/nvshmem CPATH=$CUDA_HOME/include/cccl${CPATH:+:$CPATH}
export LIBRARY_PATH=$CUDA_HOME/lib64:$NCCL_DIR/lib
mkdir -p "$kernels"
cd "$work/source"
python setup.py -q build
strip build/lib.*/deep_ep/*.so # of what is for debuggers: half of it
python setup.py -q bdist_wheel --skip-build -d "$kernels"
