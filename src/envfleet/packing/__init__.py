"""What a remote fleet and its service send each other, as bytes: values and arrays, infos, spaces."""
