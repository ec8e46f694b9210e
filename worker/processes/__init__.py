"""The forkserver, the processes of tasks, and the channel to each."""
