//! No order of turns explains the histories of limiters that are known to fail.
