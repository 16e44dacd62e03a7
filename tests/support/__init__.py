"""What several tests share: data, processes, clusters, and independent ways to compute what is tested."""
