WHOSE = "authors"
