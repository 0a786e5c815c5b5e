"""Sample applications; the path of each is `jobs.pipelines.<name>:topology`."""
