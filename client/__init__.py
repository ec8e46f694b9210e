"""What commands and scripts use: the client of a controller, pipeline files, a cluster's folder, errors for people."""
