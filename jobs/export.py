"""Export all stores on Spark: `spark-submit jobs/export.py --help` lists the flags."""

from statestore.spark import export

if __name__ == "__main__":
    export.main()
