/// Implements `Debug` for a type: with its name, and with the named fields.
macro_rules! impl_debug {
    ($([$($generics:tt)*])? $name:ident $(<$($argument:tt),*>)? { $($field:ident),* }) => {
        impl $(<$($generics)*>)? ::std::fmt::Debug for $name $(<$($argument),*>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    };
}
