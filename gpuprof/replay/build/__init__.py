"""From a timeline to the graph of its window: lanes of the CPU, queues, launches, waits, and their edges."""
