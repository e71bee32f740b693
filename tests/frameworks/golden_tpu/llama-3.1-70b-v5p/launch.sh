#!/usr/bin/env bash
# Starts this host's process: run it on every host of every slice.
set -euo pipefail

# where logs and checkpoints go: a folder, or a bucket (gs://...)
OUTPUT=${OUTPUT:-./maxtext_output}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

exec python3 -m maxtext.trainers.pre_train.train "$HERE/config.yml" base_output_directory="$OUTPUT" "$@"
