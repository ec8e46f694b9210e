"""The library of ready-made stages."""
