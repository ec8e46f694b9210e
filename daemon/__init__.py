"""What every process of Headrace needs as a process: logs, signals, threads, forks, private folders, metrics."""
