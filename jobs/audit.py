"""Audit stores with Great Expectations: `spark-submit jobs/audit.py --help` lists the flags."""

from statestore.spark import audit

if __name__ == "__main__":
    audit.main()
