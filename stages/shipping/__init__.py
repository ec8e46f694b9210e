"""A pipeline's code on its way to the workers, and what is loaded there before a task begins."""
