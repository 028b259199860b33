"""The parts of README.md and docs/ that are made of results/, a module for each page or group of pages."""
