"""What makes a cluster: certificates, tokens, tickets, and what a node says when it joins."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cluster.certificates import (
        AUTHORITY as AUTHORITY,
        KEY_BYTES_MAX as KEY_BYTES_MAX,
        NOBODY as NOBODY,
        CertificateError as CertificateError,
        Credentials as Credentials,
        Expelled as Expelled,
        Peer as Peer,
        create_authority as create_authority,
        create_node as create_node,
        fingerprint as fingerprint,
        identity_of as identity_of,
        issue as issue,
        new_key as new_key,
        private_pem as private_pem,
        public_key_fingerprint as public_key_fingerprint,
        public_pem as public_pem,
        read_certificate as read_certificate,
        read_credentials as read_credentials,
        role_host as role_host,
        utc_now as utc_now,
        verify as verify,
        why_expelled as why_expelled,
        write_credentials as write_credentials,
        write_public as write_public,
        write_secret as write_secret,
    )
    from headrace.cluster.errors import PeerError as PeerError
    from headrace.cluster.expiry import why_ended as why_ended, why_renew as why_renew
    from headrace.cluster.join import (
        IDENTIFIER_BYTES as IDENTIFIER_BYTES,
        JOIN_S_MAX as JOIN_S_MAX,
        LENGTH as LENGTH,
        MESSAGE_LIMIT_BYTES as MESSAGE_LIMIT_BYTES,
        NODES_PER_TOKEN_MAX as NODES_PER_TOKEN_MAX,
        PORT_OFFSET as PORT_OFFSET,
        PREFIX as PREFIX,
        TOKEN_LIMIT as TOKEN_LIMIT,
        Greeting as Greeting,
        JoinAnswer as JoinAnswer,
        JoinRequest as JoinRequest,
        JoinToken as JoinToken,
        TokenSpentError as TokenSpentError,
        body_length as body_length,
        check_token as check_token,
        decode_message as decode_message,
        encode_message as encode_message,
        encode_token as encode_token,
        read_token as read_token,
    )
    from headrace.cluster.roles import PEOPLE as PEOPLE, Role as Role
    from headrace.cluster.ticket import (
        KEY_BYTES_MIN as KEY_BYTES_MIN,
        Ticket as Ticket,
        TicketError as TicketError,
        encode_ticket as encode_ticket,
        match_ticket as match_ticket,
    )
else:
    __getattr__ = door(__name__)
