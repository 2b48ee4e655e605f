#!/bin/sh
# Runs a program with what Spark needs in its environment:
#
#     sh tools/with_spark.sh .venv/bin/python examples/demo.py
#
# The Spark of the virtual environment is used, whatever else the machine has: SPARK_HOME and PYTHONPATH, which machines
# with a Spark of their own often set, would mix the two.
set -eu

JAVA_HOME=$(sh tools/java.sh)
PYSPARK_PYTHON=$(pwd)/.venv/bin/python
export JAVA_HOME PYSPARK_PYTHON
# Images of machines often say that no bytecode is to be kept. Each process of a test would then compile all that it imports.
unset PYTHONDONTWRITEBYTECODE
unset SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS

# Each pair of slots costs about six file descriptors. Raised where the machine allows it, never lowered.
wanted=8192
if [ "$(ulimit -n)" != unlimited ] && [ "$(ulimit -n)" -lt "$wanted" ]; then
    ulimit -S -n "$wanted" 2>/dev/null || ulimit -S -n "$(ulimit -H -n)" 2>/dev/null || :
fi

exec "$@"
