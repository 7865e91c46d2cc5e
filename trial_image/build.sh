#!/bin/sh
# Build an image with docker, podman or buildah, whichever works here: of a trial, digits (the default) or cifar10, of the
# suggestion service, server, or of the sidecar that collects metrics, collector.
#
#   BASE     image to build on (python:3.11-slim), best by digest (python:3.11-slim@sha256:…); anything with Python 3.11
#            or later, and pip
#   TAG      name of the result (tuner/digits:1, tuner/cifar10:1, tuner/server:1, tuner/collector:1)
#   BUILDER  docker, podman or buildah, instead of the first that works
#
# digits:
#   PYTHON   a Python that has scikit-learn, whose wheel holds the images of the digits (python3)
#
# cifar10:
#   TORCH    cuda or cpu (cuda)
#   WHEELS   folder with wheels of torch, torchvision and what they need: no package index is asked then
#   DATA     folder with cifar-10-batches-py to bring along; without it, the data is mounted at run time
#
# server:
#   PYTHON   a Python with pip, which builds tuner's wheel (python3)
#   WHEELS   folder with the wheels of deploy/requirements.lock, and of pip if the base has none: no package index is asked
#   SBOM     software bill of materials to put into the image, as `make sbom` writes it
#
# collector, which is built on nothing:
#   GOARCH   the processor of the nodes (this machine's)
#
# buildah without privileges or overlay file systems: STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot, which it reads itself.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
trial=${1:-digits}
base=${BASE:-python:3.11-slim}
tag=${TAG:-tuner/$trial:1}

die() {
  echo "trial_image/build.sh: $*" >&2
  exit 1
}

works() {
  case $1 in
    docker) docker version >/dev/null 2>&1 ;; # its command line is often there without its daemon
    podman | buildah) command -v "$1" >/dev/null ;;
    *) die "BUILDER=$1 is none of docker, podman and buildah" ;;
  esac
}

builder=${BUILDER:-}
if [ -n "$builder" ]; then
  works "$builder" || die "$builder does not work here; is it installed, and its daemon running?"
else
  for one in docker podman buildah; do
    if works "$one"; then builder=$one && break; fi
  done
  [ -n "$builder" ] || die "it takes docker with its daemon running, podman or buildah, and none is here; on Debian: apt install buildah"
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

digits() {
  data=$("${PYTHON:-python3}" -c '
import importlib.util, pathlib, sys
package = importlib.util.find_spec("sklearn")
if package is None:
    sys.exit(1)
print(pathlib.Path(package.origin).parent / "datasets/data/digits.csv.gz")') ||
    die "the digits come with scikit-learn, which ${PYTHON:-python3} does not have: pip install scikit-learn, or PYTHON=…"
  cp "$here/digits/Dockerfile" "$here/../examples/digits/train.py" "$here/../examples/digits/train_generations.py" \
    "$here/../examples/digits/parallel.py" "$data" "$context"
}

cifar10() {
  case ${TORCH:=cuda} in cuda | cpu) ;; *) die "TORCH=$TORCH is neither cuda nor cpu" ;; esac
  cp "$here/Dockerfile" "$context"
  mkdir "$context/programs" "$context/wheels" "$context/data"
  cp "$here"/*.py "$context/programs"
  if [ -n "${WHEELS:-}" ]; then
    ls "$WHEELS"/*.whl >/dev/null 2>&1 || die "WHEELS=$WHEELS is not a folder with wheels (*.whl)"
    cp "$WHEELS"/*.whl "$context/wheels"
  fi
  if [ -n "${DATA:-}" ]; then
    [ -d "$DATA/cifar-10-batches-py" ] || die "DATA=$DATA is not a folder with cifar-10-batches-py"
    cp -R -p "$DATA/cifar-10-batches-py" "$context/data"
  fi
}

# Read without other programs: nothing but a shell and the builder may be installed.
version() {
  while IFS= read -r line; do
    case $line in
      'VERSION = "'*)
        line=${line#'VERSION = "'}
        printf '%s' "${line%\"}"
        return
        ;;
    esac
  done <"$here/../suggest/distribution.py"
}

server() {
  mkdir -p "$context/context/wheels"
  cp "$here/../deploy/Dockerfile" "$context"
  cp "$here/../deploy/requirements.lock" "$context/context"
  "${PYTHON:-python3}" -c 'import hatchling' 2>/dev/null && isolation=--no-build-isolation || isolation=
  "${PYTHON:-python3}" -m pip --disable-pip-version-check --quiet wheel $isolation --no-deps \
    --wheel-dir "$context/context" "$here/.." ||
    die "${PYTHON:-python3} cannot build tuner's wheel; it takes pip: PYTHON=…"
  if [ -n "${WHEELS:-}" ]; then
    ls "$WHEELS"/*.whl >/dev/null 2>&1 || die "WHEELS=$WHEELS is not a folder with wheels (*.whl)"
    cp "$WHEELS"/*.whl "$context/context/wheels"
  fi
  if [ -n "${SBOM:-}" ]; then
    [ -e "$SBOM" ] || die "SBOM=$SBOM is not there; make sbom writes it"
    cp "$SBOM" "$context/context/sbom.cdx.json"
  fi
}

collector() {
  command -v go >/dev/null || die "the collector is a Go program, and no go is here; install Go 1.24 or later: https://go.dev/dl"
  (cd "$here/collector" && CGO_ENABLED=0 GOFLAGS=-mod=mod go build -trimpath -ldflags='-s -w' -o "$context/collector" .)
  cp "$here/collector/Dockerfile" "$context"
}

# Check the digest here: otherwise only the registry would notice a mistake, after the context was sent.
case $base in
  *@*)
    hex=${base##*@sha256:}
    case $hex in *[!0-9a-f]*) hex= ;; esac
    [ ${#hex} -eq 64 ] || die "BASE=$base: a digest is sha256: and 64 hexadecimal digits"
    ;;
esac

set --
case $trial in
  digits) digits ;;
  server)
    server
    set -- --build-arg "VERSION=$(version)"
    ;;
  cifar10)
    cifar10
    set -- --build-arg "TORCH=$TORCH"
    ;;
  collector) base=scratch && collector ;;
  *) die "$trial is none of digits, cifar10, server and collector" ;;
esac

# docker and every kubelet read tuner/digits:1 as docker.io/tuner/digits:1, podman and buildah as localhost/tuner/digits:1.
set -- --build-arg "BASE=$base" "$@" --tag "$tag"
if [ "$builder" != docker ]; then
  case $tag in
    */*) registry=${tag%%/*} ;;
    *) registry=none tag=library/$tag ;;
  esac
  case $registry in
    *.* | *:* | localhost) ;;
    *) set -- "$@" --tag "docker.io/$tag" ;;
  esac
fi
case $builder in
  buildah) buildah bud "$@" "$context" ;;
  *) "$builder" build "$@" "$context" ;;
esac
echo "built ${TAG:-tuner/$trial:1} on $base with $builder"
