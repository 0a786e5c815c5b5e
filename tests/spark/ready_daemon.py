"""What forks Spark's Python workers, with their imports done: each would do them again.

Spark starts it as a module (`spark.python.daemon.module`), one for each kind of worker.
"""

import os

# A thread of numpy's or of Arrow's would be missing after a fork.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

from pyspark.daemon import manager  # the variables first

import statestore.spark.datasource
import statestore.spark.process  # noqa: F401

if __name__ == "__main__":
    manager()
