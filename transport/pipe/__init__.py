"""Links through a pipe of the kernel."""
