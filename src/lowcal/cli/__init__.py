"""What each command does, a file for each: it takes the parsed options, does its work and returns the exit code."""
