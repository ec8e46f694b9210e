"""The store in a bucket, `s3://`, on any server that speaks S3."""
