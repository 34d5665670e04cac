"""The one training loop: what it learns by, what ends it, what it tells, what it keeps."""
