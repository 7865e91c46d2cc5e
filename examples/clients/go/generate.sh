#!/bin/sh
# Makes suggestpb/ from the proto, or another folder: ./generate.sh [FOLDER]
# The plugins are those that go.mod pins. protoc is the one of `python proto/generate.py`, or another: PROTOC=protoc ./generate.sh
set -eu
cd "$(dirname "$0")"
into=${1:-suggestpb}
root=../../..
package=tuner.dev/examples/clients/go/suggestpb
mapping="Msuggest/v1/suggest.proto=$package,module=$package"   # the proto names no Go package: each program has its own
mkdir -p "$into"
${PROTOC:-"$root/.venv-proto/bin/python" -m grpc_tools.protoc} -I "$root/proto" \
  --plugin="$(go tool -n protoc-gen-go)" --go_out="$into" --go_opt="$mapping" \
  --plugin="$(go tool -n protoc-gen-go-grpc)" --go-grpc_out="$into" --go-grpc_opt="$mapping" \
  suggest/v1/suggest.proto
