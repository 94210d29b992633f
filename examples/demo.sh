#!/usr/bin/env bash
# The main job from end to end, each command shown as one would type it. Run it with `make demo`, or with shardvar
# installed and this repository as the current directory.
set -euo pipefail

show() {
    printf '\n$ %s\n' "$1"
    eval "$1"
}

rm -rf build/demo
mkdir -p build/demo

echo 'A model of five tensors; those that have rows are cut into three slices:'
show 'python examples/make_checkpoint.py build/demo/three'
show 'shardvar inspect build/demo/three --slices'

echo
echo 'The same for five shards, and some rows that two of them share:'
show 'shardvar reshard build/demo/three build/demo/five --shards 5'
show 'shardvar inspect build/demo/five --slices'
show "shardvar show build/demo/five embedding '198:202, :3'"
show 'shardvar verify build/demo/five'
show 'shardvar diff build/demo/three build/demo/five'

echo
echo "The same in TensorFlow's format, without TensorFlow:"
show 'shardvar reshard build/demo/five build/demo/tensorflow --format tensorflow'
show 'shardvar inspect build/demo/tensorflow'
show 'shardvar verify build/demo/tensorflow'
show 'shardvar diff build/demo/three build/demo/tensorflow'

echo
echo "Done. The checkpoints are in build/demo; 'source .venv/bin/activate' puts shardvar on your path."
