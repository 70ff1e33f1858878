"""What several observers need: isolation, child processes, patches, fingerprints."""
