"""Who may do what, for every port."""
