package main

// What every program that calls the service needs: TLS and a token where given, calls repeated until they get through,
// errors a person can read. Nothing here knows what is tuned.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const attemptTimeout = 10 * time.Second

// connect does not wait for the server: the first call does. An empty caFile means no TLS, "system" the authorities that
// this machine trusts; an empty tokenFile means no token.
func connect(address, caFile, tokenFile string, patience time.Duration) (*grpc.ClientConn, error) {
	channel := insecure.NewCredentials()
	if caFile == "system" {
		channel = credentials.NewTLS(&tls.Config{})
	} else if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, err
		}
		authorities := x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it; give a file in PEM", caFile)
		}
		channel = credentials.NewTLS(&tls.Config{RootCAs: authorities})
	}
	// A server that is restarted should be found again at once: gRPC's own pauses between connections grow to minutes.
	quick := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(channel),
		grpc.WithUnaryInterceptor(untilAnswered(patience)),
		grpc.WithNoProxy(), // the service is near; a proxy for the web is not the way to it
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 5 * time.Second}),
	}
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		each := bearer{token: strings.TrimSpace(string(token)), local: isLocal(address)}
		options = append(options, grpc.WithPerRPCCredentials(each))
	}
	return grpc.NewClient(address, options...)
}

// retryDelay is how long the service asks to wait before the call is sent again; 0 if it does not.
func retryDelay(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// untilAnswered sends a call again while nobody answers it. Every method may be repeated: what has a request_id is
// recognized by that, all else by its meaning, so a call whose reply was lost is not done twice.
func untilAnswered(patience time.Duration) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var unanswered error // why, in the words that say most
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
			attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
			err := invoke(attempt, method, request, reply, conn, options...)
			cancel()
			switch code := status.Code(err); {
			case code == codes.Unavailable || code == codes.DeadlineExceeded && unanswered == nil:
				unanswered = err
			case code == codes.Canceled && ctx.Err() == nil: // a server stopped before it looked
				unanswered = err
			case code == codes.ResourceExhausted && retryDelay(err) > 0: // too much at once; it says when to come again
				unanswered = err
				pause = retryDelay(err)
			case code != codes.DeadlineExceeded:
				return err
			}
			select {
			case <-ctx.Done():
				return unanswered
			case <-time.After(pause):
			}
		}
	}
}

// bearer sends the token with each call, and unencrypted only to this machine.
type bearer struct {
	token string
	local bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.local }

func isLocal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return strings.HasPrefix(address, "unix:") || err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// reason is the service's word for what went wrong (docs/api.md has the table), or "" if it was not the service.
func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// explain is an error in lines for a person: the message, or the fields that are wrong, and what else the service said.
func explain(err error) string {
	answer, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	lines := []string{fmt.Sprintf("%s: %s", answer.Code(), answer.Message())}
	for _, detail := range answer.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			for key, value := range detail.Metadata { // NOT_OWNER: the address of the server that writes the study
				lines = append(lines, fmt.Sprintf("  %s: %s", key, value))
			}
		case *errdetails.BadRequest: // the message has the same in one line
			lines[0] = answer.Code().String()
			for _, violation := range detail.FieldViolations {
				lines = append(lines, fmt.Sprintf("  %s: %s", violation.Field, violation.Description))
			}
		}
	}
	return strings.Join(lines, "\n")
}
