"""What tests share. Benchmarks and fuzz targets use it too."""
