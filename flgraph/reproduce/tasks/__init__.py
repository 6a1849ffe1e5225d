"""Tables of tasks that no paper here has: numbers, several labels, links, clusters of nodes."""
