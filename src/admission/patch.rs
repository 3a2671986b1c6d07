//! From mutations to the smallest RFC 6902 patch.
