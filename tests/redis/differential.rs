//! The same trace through memory and through Redis: the same decisions, field by field.
