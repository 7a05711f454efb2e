package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

func (a *app) users() *cobra.Command {
	return plural(group("user", "Look at registered users", []string{"registration"}, a.userShow()), "users", &cobra.Command{
		Use: "list", Short: "List who is registered", Args: exactly(),
		Long: "List who is registered, with the public identity that the phone registered and the workers whose\n" +
			"user it is.",
		RunE: list(a, func(ctx context.Context, c *api.Client, after string) ([]api.Registration, string, error) {
			page, err := c.Users(ctx, after, api.MaxPage)
			return page.Users, page.Next, err
		}, a.printUsers),
	})
}

func (a *app) printUsers(all []api.Registration) error {
	t := newTable(a.out, "IDENTITY", "IMPI", "P-CSCF", "S-CSCF")
	for _, r := range all {
		t.add(r.Identity, r.IMPI, serving(r.PCSCF), serving(r.SCSCF))
	}
	return t.end()
}

// serving says whose a user is, and who serves it where that is another.
func serving(s api.Serving) string {
	if s.Serving != s.Home && s.Serving != "" {
		return fmt.Sprintf("%s, served by %s", s.Home, s.Serving)
	}
	return s.Home
}

func (a *app) userShow() *cobra.Command {
	return &cobra.Command{
		Use: "show IDENTITY", Short: "Show a registered user", Args: exactly("the IDENTITY of a user, such as sip:alice@example.org"),
		Example: "  bellwether user show sip:alice@example.org\n  bellwether user show tel:+4930123456",
		RunE: show(a, func(ctx context.Context, c *api.Client, args []string) (api.User, error) {
			id := withScheme(args[0])
			if strings.Contains(id, ":") {
				var err error
				if id, err = canonical(id); err != nil {
					return api.User{}, &usageError{err.Error()}
				}
			}
			return c.User(ctx, id)
		}, a.printUser),
		ValidArgsFunction: a.completed(registered),
	}
}

func (a *app) printUser(u api.User) error {
	t := newTable(a.out, "Identity", clean(u.Identity))
	t.add("IMPI", u.IMPI)
	t.add("Registered together", strings.Join(u.Identities, " "))
	t.add("P-CSCF", serving(u.PCSCF))
	t.add("S-CSCF", serving(u.SCSCF))
	t.add("Path", strings.Join(u.Path, " "))
	t.add("Service-Route", strings.Join(u.ServiceRoute, " "))
	t.add("Expires", stamp(u.Expires))
	for _, c := range u.Contacts {
		t.add("Contact", fmt.Sprintf("%s via %s, q=%g, until %s", c.URI, c.Flow, c.Q, stamp(c.Expires)))
	}
	return t.end()
}
