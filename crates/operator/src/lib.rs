//! The operator: watches, executes what the core decides, reports.
