"""Process what the input topics hold: `spark-submit jobs/process.py --help` lists the flags."""

from statestore.spark import process

if __name__ == "__main__":
    process.main()
