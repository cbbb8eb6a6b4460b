//! Flow lines, budgets and token buckets in fixed tables.
