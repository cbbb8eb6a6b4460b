//! Namespaces, links, clients and attackers for the demo, tests and benchmarks.
