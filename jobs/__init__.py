"""Scripts for spark-submit, one verb each, and the sample pipelines. No wheel contains them."""
