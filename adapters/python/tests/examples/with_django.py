"""A limit for each user or address in Django, which docs/python.md shows. test_examples.py runs it."""

from functools import wraps

from django.db import connection
from django.http import HttpResponse

from postgres_rate_limit import MINUTE, RateLimiter, address_key, token_bucket

limiter = RateLimiter({"search": token_bucket(30, MINUTE, keyed=True)}, db=connection)  # that of the thread


def by_address(request):
    return address_key(request.META["REMOTE_ADDR"])


def rate_limit(name, key=by_address):
    """A decorator of views, which answers 429 if there is no token left."""

    def decorate(view):
        @wraps(view)
        def limited(request, *args, **kwargs):
            result = limiter.limit(name, key(request))
            if not result.ok:
                return HttpResponse("Too Many Requests", status=429, headers=result.headers)
            return view(request, *args, **kwargs)

        return limited

    return decorate


@rate_limit("search")
def search(request):
    return HttpResponse("found")
