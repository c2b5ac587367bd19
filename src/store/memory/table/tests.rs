//! Laws of the table, against a map without a capacity.
