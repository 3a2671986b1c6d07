//! From AdmissionReview bytes to a pod request, and from a decision to response bytes.
