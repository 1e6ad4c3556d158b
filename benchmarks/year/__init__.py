"""A virtual year: four backends of one host, everything that happens to model servers, and the law held against it."""
