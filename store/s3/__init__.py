"""The store in a bucket, `s3://`, on any server that speaks S3."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.s3.probe import begin_race as begin_race
    from headrace.store.s3.retry import RetryPolicy as RetryPolicy
    from headrace.store.s3.store import S3Store as S3Store
else:
    __getattr__ = door(__name__)
