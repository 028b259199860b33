"""`distilvec speed`: latency, throughput, size and memory."""
