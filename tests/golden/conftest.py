collect_ignore = ["golden.py", "pairs.py", "record.py"]  # found by name once their folder is on the path
