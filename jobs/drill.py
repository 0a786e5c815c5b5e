"""Drill the deaths of Spark workers: `python jobs/drill.py --help` lists the flags."""

from statestore.spark import drill

if __name__ == "__main__":
    drill.main()
