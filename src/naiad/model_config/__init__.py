"""`config.pbtxt`: schema, text and JSON form, validation, completion from the artifact."""
